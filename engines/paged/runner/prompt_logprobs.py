"""How likely the model holds each token of a prompt: for requests that ask for `prompt_logprobs`."""

from __future__ import annotations

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from engines.paged.api_types import TokenLogprob
from engines.paged.model.decoder import Decoder
from engines.paged.scheduling.batch_plan import ScheduledChunk

_ROWS = 64  # logits of a whole prompt at once would be hundreds of megabytes


def score_prompts(
    decoder: Decoder, hidden: Tensor, pieces: Many[ScheduledChunk], first: int
) -> dict[int, list[TokenLogprob]]:
    """By index of the piece (counted from `first`): its prompt's tokens behind each of its rows. hidden [n, HID]."""
    scores: dict[int, list[TokenLogprob]] = {}
    begin = 0
    for index, piece in enumerate(pieces, first):
        params, sequence = piece.sequence.request.params, piece.sequence
        count = min(piece.end, sequence.num_prompt - 1) - piece.start  # rows that a token of the prompt follows
        if params.prompt_logprobs is not None and count > 0 and sequence.choice == 0:
            told: list[TokenLogprob] = []
            for start in range(0, count, _ROWS):
                size = min(_ROWS, count - start)
                rows = hidden[begin + start : begin + start + size]
                position = piece.start + start
                told += _scores(decoder.logits(rows), sequence.tokens[position + 1 :][:size], params.prompt_logprobs)
            scores[index] = told
        begin += piece.count
    return scores


def _scores(logits: Tensor, tokens: list[int], num_top: int) -> list[TokenLogprob]:
    logprobs = logits.log_softmax(-1)
    own = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    values, ids = logprobs.topk(num_top) if num_top else (logprobs[:, :0], logprobs[:, :0].long())
    tops = [tuple(zip(row_ids, row, strict=True)) for row_ids, row in zip(ids.tolist(), values.tolist(), strict=True)]
    return [TokenLogprob(*each) for each in zip(tokens, own, tops, strict=True)]
