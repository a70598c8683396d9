"""Text to BERT's tokens, in plain Python: the python model `minilm_tokenizer`.

Source: BERT's `tokenization.py` (basic and WordPiece tokenizers, uncased).
"""

import unicodedata
from pathlib import Path

import numpy as np

MAX_TOKENS = 256  # what the model was trained with
STEP = 16  # lengths are rounded up to a multiple, so that requests batch together


class WordPiece:
    """A vocabulary, and the ids of a text in it."""

    def __init__(self, vocabulary):
        self._ids = {word: number for number, word in enumerate(vocabulary)}
        self._unknown, self._start, self._end = (self._ids[word] for word in ("[UNK]", "[CLS]", "[SEP]"))

    def ids(self, text):
        pieces = [piece for word in words(text) for piece in self._pieces(word)]
        return [self._start, *pieces[: MAX_TOKENS - 2], self._end]

    def _pieces(self, word):
        """The longest pieces that the vocabulary has, from the left; a word that has none is unknown."""
        if len(word) > 100:
            return [self._unknown]
        pieces, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in self._ids:
                    pieces.append(self._ids[piece])
                    start = end
                    break
            else:
                return [self._unknown]
        return pieces


def words(text):
    """Lower-case words without accents; a punctuation mark or an ideograph is one by itself."""
    text = unicodedata.normalize("NFD", text.lower())
    spaced = []
    for character in text:
        kind = unicodedata.category(character)
        if kind == "Mn" or character in "\0\ufffd" or (kind.startswith("C") and character not in "\t\n\r"):
            continue
        is_alone = kind.startswith("P") or _is_ascii_sign(character) or _is_ideograph(character)
        spaced.append(f" {character} " if is_alone else character)
    return "".join(spaced).split()


def _is_ascii_sign(character):
    return "!" <= character <= "/" or ":" <= character <= "@" or "[" <= character <= "`" or "{" <= character <= "~"


def _is_ideograph(character):
    code = ord(character)
    return (
        0x4E00 <= code <= 0x9FFF or 0x3400 <= code <= 0x4DBF or 0xF900 <= code <= 0xFAFF or 0x20000 <= code <= 0x2FA1F
    )


def batch_of(rows):
    """Lists of ids as two arrays [rows, length]: the ids, zeros behind them, and a mask of ones where they are."""
    length = -(-max(map(len, rows)) // STEP) * STEP
    ids = np.zeros((len(rows), length), np.int64)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    return ids, mask


class TritonPythonModel:
    def initialize(self, args):
        here = Path(args["model_repository"]) / args["model_version"] / "vocab.txt"
        self._tokenizer = WordPiece(here.read_text(encoding="utf-8").split("\n"))

    def execute(self, requests):
        import triton_python_backend_utils as pb_utils

        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy().reshape(-1)
            ids, mask = batch_of([self._tokenizer.ids(text.decode("utf-8", "replace")) for text in texts])
            outputs = [pb_utils.Tensor("input_ids", ids), pb_utils.Tensor("attention_mask", mask)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
