"""What went wrong in a model's code, as Triton's Python backend tells it: the error, then where, innermost first."""

from __future__ import annotations

from pathlib import Path
from types import FrameType

_NO_TEXT = "<EMPTY MESSAGE>"  # as pybind11 writes it
_OUR_CODE = str(Path(__file__).parents[1])


def describe(error: BaseException) -> str:
    """`ValueError: boom`, and the lines of the model's code that led there."""
    text = f"{type(error).__name__}: {str(error) or _NO_TEXT}"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    frame = trace.tb_frame if trace is not None else None
    lines: list[str] = []
    while frame is not None and _is_ours(frame):  # ours that the model has called
        frame = frame.f_back
    while frame is not None and not _is_ours(frame):
        lines.append(f"  {frame.f_code.co_filename}({frame.f_lineno}): {frame.f_code.co_name}\n")
        frame = frame.f_back
    return f"{text}\n\nAt:\n{''.join(lines)}" if lines else text


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith((_OUR_CODE, "<frozen runpy>"))
