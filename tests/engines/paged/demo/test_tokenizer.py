"""The tokenizer of the demo's language model, and its chat template."""

from pathlib import Path

import pytest
from demo_llm.chats import Message
from demo_llm.corpus import Document, documents
from demo_llm.folder import write_tokenizer
from demo_llm.tokenizer import END, SPECIAL_TOKENS, encode, train_tokenizer, words_of
from transformers import AutoTokenizer, PreTrainedTokenizerBase

SIZE = 400


@pytest.fixture(scope="module")
def trained():
    return train_tokenizer(documents(0, 60), SIZE)


@pytest.fixture(scope="module")
def loaded(trained, tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """The tokenizer as transformers loads it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder, trained, 512)
    return AutoTokenizer.from_pretrained(folder)


def test_the_vocabulary_is_of_its_size(trained) -> None:
    """Special tokens have the first ids; common words of the corpus are one token each."""
    assert trained.get_vocab_size() == SIZE
    assert [trained.id_to_token(number) for number in range(4)] == list(SPECIAL_TOKENS)
    assert trained.encode(" said").tokens == ["Ġsaid"]


@pytest.mark.parametrize("text", ["Once upon a time, there was a fox.", "naïve café 狐 🦊\n\n  x", "<b>&\t\r\0"])
def test_every_text_can_be_written(loaded: PreTrainedTokenizerBase, text: str) -> None:
    """Bytes are tokens, so every text decodes to itself."""
    assert loaded.decode(loaded(text).input_ids) == text


def test_the_chat_template_writes_what_was_trained(loaded: PreTrainedTokenizerBase, trained) -> None:
    """The template renders a conversation to the tokens that the model was trained on."""
    for one in documents(1, 60):
        if one.chat:
            messages = [{"role": each.role, "content": each.content} for each in one.chat]
            assert loaded.apply_chat_template(messages, return_dict=False) == encode(trained, one)


def test_a_text_ends_with_its_end(trained) -> None:
    """A story ends with the end token, and begins with it if there is no prompt."""
    one = Document("Mia was a fox.")
    end = trained.token_to_id(END)
    assert encode(trained, one)[-1] == end
    assert encode(trained, one, begins=True) == [end, *encode(trained, one)]


def test_clients_of_openai_are_understood(loaded: PreTrainedTokenizerBase) -> None:
    """The template treats the developer role as the system role, accepts contents in parts, and adds a generation
    prompt."""
    parts = [{"type": "text", "text": " Hi. "}]
    reply = loaded.apply_chat_template(
        [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert reply == "<|system|>Be brief.<|user|>Hi.<|assistant|>"


def test_an_unknown_role_is_refused(loaded: PreTrainedTokenizerBase) -> None:
    """The error names the unknown role and the known ones."""
    with pytest.raises(Exception, match="knows the roles system, user and assistant, not tool"):
        loaded.apply_chat_template([{"role": "tool", "content": "x"}], tokenize=False)


def test_words_are_counted() -> None:
    """Word counts ignore case and cover texts and conversations."""
    some = [Document("The fox saw a Fox."), Document(chat=(Message("user", "A fox?"),))]
    assert words_of(some) == {"the": 1, "fox": 3, "saw": 1, "a": 2}


def test_the_tokenizer_config_is_complete(loaded: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    """The end token stops generation and serves as padding; no token is added before a prompt."""
    assert loaded.eos_token == loaded.pad_token == END and loaded.eos_token_id == 0
    assert loaded("fox").input_ids[0] != 0 and loaded.model_max_length == 512
