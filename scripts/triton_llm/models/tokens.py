"""Text to tokens and back, in Triton's python models of this repository."""


class TokenCodec:
    """A tokenizer folder: tokenizer.json by the package tokenizers, anything else by transformers."""

    def __init__(self, folder):
        path = folder / "tokenizer.json"
        if path.exists():
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(path))
            self._encode = lambda text: tokenizer.encode(text).ids
            self._encode_plain = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
            self._decode = tokenizer.decode  # leaves special tokens out
        else:
            from transformers import AutoTokenizer

            slow = AutoTokenizer.from_pretrained(folder)
            self._encode = slow.encode
            self._encode_plain = lambda text: slow.encode(text, add_special_tokens=False)
            self._decode = lambda ids: slow.decode(ids, skip_special_tokens=True)

    def encode_prompt(self, text):
        """The prompt's tokens, with the tokenizer's own special tokens, but for a first one that the text has already:
        chat templates write it, too."""
        ids = self._encode(text)
        return ids[1:] if len(ids) > 1 and ids[0] == ids[1] and ids[1:] == self._encode_plain(text) else ids

    def encode_word(self, text):
        """The tokens of a stop or bad word, without special tokens."""
        return self._encode_plain(text)

    def decode(self, ids):
        return self._decode(list(ids))


class TextStream:
    """The text of tokens that arrive a few at a time. A piece is given out once it cannot change any more: a character
    may have several tokens, and a word's blank depends on what precedes it."""

    def __init__(self, codec):
        self._codec = codec
        self._ids = []
        self._begin = self._end = 0  # tokens from _begin on are decoded together; text up to _end has been given out

    def add(self, ids, is_last=False):
        """The further text, "" where it is not yet complete."""
        self._ids.extend(ids)
        given = self._codec.decode(self._ids[self._begin : self._end])
        text = self._codec.decode(self._ids[self._begin :])
        if not is_last and (len(text) <= len(given) or text.endswith("\N{REPLACEMENT CHARACTER}")):
            return ""
        self._begin, self._end = self._end, len(self._ids)
        return text[len(given) :]


def word_list(words):
    """Lists of tokens as TensorRT-LLM takes them: two rows, the tokens of all and where each ends, filled up with -1.
    Source: TensorRT-LLM's `to_word_list_format`."""
    ids = [token for word in words for token in word]
    ends, end = [], 0
    for word in words:
        end += len(word)
        ends.append(end)
    return [ids, ends + [-1] * (len(ids) - len(ends))]
