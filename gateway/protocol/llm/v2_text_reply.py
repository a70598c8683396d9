"""What a V2 reply tells of a generation: the text of each choice, and what the client asked for beside it."""

from __future__ import annotations

from typing import Any

from gateway.protocol.llm.canonical import Event, Finished, Generation, TextDelta, Used
from gateway.protocol.llm.v2_text_request import TextRequest

# More choices than this are no request: each event of theirs is an array.
MAX_CHOICES = 128


class ToldText:
    """Gathers the events of a reply. `names` are the outputs to tell."""

    def __init__(self, generation: Generation) -> None:
        of_v2 = generation if isinstance(generation, TextRequest) else TextRequest(generation.model)
        self.names = of_v2.told
        self._before = of_v2.before
        num = generation.options.get("n", 1)
        self.num_choices = min(num, MAX_CHOICES) if type(num) is int and num > 0 else 1
        self.texts = [self._before] * self.num_choices
        self._begun: set[int] = set()
        self._logprobs: list[list[float]] = [[] for _ in range(self.num_choices)]
        self._finished: dict[int, Finished] = {}
        self._used = Used()

    def __repr__(self) -> str:
        return f"<ToldText: {self.num_choices} choices, {len(self._finished)} finished>"

    def add(self, event: Event) -> None:
        """Keep what an event says, for `texts` and `values`."""
        if isinstance(event, TextDelta):
            if 0 <= event.index < self.num_choices:
                self.texts[event.index] += event.text
            self._add_logprobs(event)
        elif isinstance(event, Finished):
            self._finished[event.index] = event
        elif isinstance(event, Used):
            self._used = event

    def add_text(self, event: TextDelta) -> str:
        """What to tell of a piece of a stream; `texts` stay as they are."""
        self._add_logprobs(event)
        if not self._before or event.index in self._begun:
            return event.text
        self._begun.add(event.index)
        return self._before + event.text

    def values(self) -> dict[str, Any]:
        """The outputs beside the text: a value for each choice, by itself where there is one."""
        reasons = [self._finished.get(index, Finished()) for index in range(self.num_choices)]
        sums = [sum(each) for each in self._logprobs]
        known: dict[str, list[Any]] = {
            "finish_reason": [each.reason for each in reasons],
            "stop_reason": [each.stop_sequence or "None" for each in reasons],
            "cumulative_logprob": sums,
            "cum_log_probs": sums,
            "num_input_tokens": [self._used.prompt],
            # An engine counts all choices as one: they stand in the first, so that the sum is right.
            "num_output_tokens": [self._used.completion] + [0] * (self.num_choices - 1),
        }
        told = {name: values[0] if len(values) == 1 else values for name, values in known.items() if name in self.names}
        if "output_log_probs" in self.names:
            told["output_log_probs"] = [each for choice in self._logprobs for each in choice]
        return told

    def _add_logprobs(self, event: TextDelta) -> None:
        if event.logprobs and 0 <= event.index < self.num_choices:
            self._logprobs[event.index] += [token["logprob"] for token in event.logprobs]
