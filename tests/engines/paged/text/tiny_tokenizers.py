"""Small real tokenizers of the kinds that language models use."""

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = [
    "the cat sat on the mat, then the hat.",
    "Größe und Maß: 你好世界 🙂🙃",
    'JSON: {"name": "Ann", "age": 42}',
    "a  b\n\nc\t",
]


@cache
def byte_level() -> Tokenizer:
    """As in GPT-2, Llama 3 and Qwen: every token is a sequence of bytes."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(TEXT, trainer)
    made.add_special_tokens(["<|bos|>", "<|eos|>", AddedToken("<|a b|>", special=True)])
    made.add_tokens([AddedToken("<tool call>"), AddedToken("Größe!"), AddedToken("<think>")])
    bos = made.token_to_id("<|bos|>")
    made.post_processor = processors.TemplateProcessing("<|bos|> $A", special_tokens=[("<|bos|>", bos)])
    return made


@cache
def fallback() -> Tokenizer:
    """As in Llama 2 and Gemma: pieces with a sign for the space, and a token for each byte."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *'abcdefghijklmnopqrstuvwxyz.,:;!?{}[]"0123456789你']
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "▁"), ("a", "t"), ("▁", "c")]
    pieces += ["".join(merge) for merge in merges]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return made


@cache
def metaspace() -> Tokenizer:
    """As in T5: a unigram model, with spaces at the beginning of words."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200,
        special_tokens=["<unk>", "</s>"],
        unk_token="<unk>",
        initial_alphabet=[chr(letter) for letter in range(0x21, 0x7F)],
        show_progress=False,
    )
    made.train_from_iterator(TEXT * 3, trainer)
    return made


@cache
def word_pieces() -> Tokenizer:
    """As in BERT: separate words, with marked continuations."""
    words = ["[UNK]", "the", "cat", "##s", "sat", "mat", ".", ",", "##ting", "a", "##b"]
    made = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece(cleanup=False)
    return made


KINDS = {"byte_level": byte_level, "fallback": fallback, "metaspace": metaspace, "word_pieces": word_pieces}
