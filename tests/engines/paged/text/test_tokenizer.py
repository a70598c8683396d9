"""Tokenizers of model folders: the files that are read, and conversations as prompts."""

import json

import pytest
from tokenizers import Tokenizer as Backend

from engines.core.errors import EngineError
from engines.paged.text.tokenizer import Tokenizer
from tests.engines.paged.text import tiny_tokenizers

CONFIG = {"bos_token": "<|bos|>", "eos_token": {"content": "<|eos|>", "lstrip": False}}
TURNS = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
ANSWER = "{% if add_generation_prompt %}[assistant]{% endif %}"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def folder(tmp_path):
    """A model folder whose tokenizer's post-processor adds BOS before a text."""
    tiny_tokenizers.byte_level().save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "tokenizer_config.json", CONFIG | {"chat_template": TURNS + ANSWER})
    return tmp_path


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_bos_comes_once(folder):
    """The post-processor adds BOS once, also if the text begins with it already."""
    tokenizer = Tokenizer.load(folder)
    plain = tokenizer.encode("hi", add_special_tokens=False)
    assert tokenizer.bos_id not in plain
    assert tokenizer.encode("hi") == [tokenizer.bos_id, *plain]
    assert tokenizer.encode("<|bos|>hi") == [tokenizer.bos_id, *plain]
    assert tokenizer.encode("<|bos|><|bos|>hi", add_special_tokens=False) == [tokenizer.bos_id] * 2 + plain


def test_chat_has_the_templates_bos_alone(folder):
    """A conversation has the tokens of its template's text: one BOS if the template prints it, else none."""
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.render_chat(HI) == "<|bos|>[user]hi[assistant]"
    assert tokenizer.encode(tokenizer.render_chat(HI), False) == tokenizer.encode("[user]hi[assistant]")
    assert tokenizer.render_chat(HI, add_generation_prompt=False) == "<|bos|>[user]hi"
    write(folder, "chat_template.jinja", "{{ messages[0].content }}")
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.encode(tokenizer.render_chat(HI), False) == tokenizer.encode("hi", add_special_tokens=False)


def test_where_templates_are(folder):
    """A template file takes precedence over the configuration; of several named templates, the one for tools is used
    with tools."""
    assert Tokenizer.load(folder).render_chat(HI) == "<|bos|>[user]hi[assistant]"
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools[0].function.name }}"}]
    write(folder, "tokenizer_config.json", CONFIG | {"chat_template": named})
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    assert Tokenizer.load(folder).render_chat(HI) == "plain"
    assert Tokenizer.load(folder).render_chat(HI, [tool]) == "look"
    write(folder, "chat_template.jinja", "file {{ eos_token }}")
    assert Tokenizer.load(folder).render_chat(HI) == "file <|eos|>"
    write(folder, "additional_chat_templates/tool_use.jinja", "file for tools")
    assert Tokenizer.load(folder).render_chat(HI, [tool]) == "file for tools"
    assert Tokenizer.load(folder).render_chat(HI) == "file <|eos|>"


def test_a_template_of_a_processor(folder):
    """A chat_template.json is read if there is no other template."""
    write(folder, "tokenizer_config.json", CONFIG)
    write(folder, "chat_template.json", {"chat_template": "old {{ x }}"})
    assert Tokenizer.load(folder).render_chat(HI, x=1) == "old 1"


def test_no_template(folder):
    """A model without a chat template accepts prompts only, and the error for a conversation names the reason."""
    write(folder, "tokenizer_config.json", CONFIG)
    tokenizer = Tokenizer.load(folder)
    assert not tokenizer.has_chat_template
    with pytest.raises(EngineError, match="no chat template"):
        tokenizer.render_chat(HI)


def test_a_template_that_refuses(folder):
    """A template's own error message reaches the client."""
    write(folder, "chat_template.jinja", "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(EngineError, match="roles must alternate"):
        Tokenizer.load(folder).render_chat(HI)


def test_a_template_with_a_date(folder):
    """A template that needs the date uses the caller's clock, else the machine's."""
    write(folder, "chat_template.jinja", "{{ strftime_now('%Y') }}")
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.render_chat(HI, strftime_now=lambda _: "then") == "then"
    assert int(tokenizer.render_chat(HI)) >= 2024


def test_what_ends_a_text(folder):
    """The tokenizer's EOS ends a text; the engine adds those of the model's config."""
    assert Tokenizer.load(folder).eos_ids == {tiny_tokenizers.byte_level().token_to_id("<|eos|>")}


def test_sizes_and_special_tokens(folder):
    """The vocabulary size includes added tokens; special tokens have no text by default."""
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.vocab_size == max(tiny_tokenizers.byte_level().get_vocab().values()) + 1
    ids = tokenizer.encode("a<|eos|>b<think>")
    assert tokenizer.decode(ids) == "ab<think>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|bos|>a<|eos|>b<think>"
    assert tokenizer.eos_ids <= tokenizer.special_ids


def test_tokens_that_the_configuration_adds(folder):
    """A token of the tokenizer's configuration only is added if its id is the next one."""
    size = Tokenizer.load(folder).vocab_size
    added = {str(size): {"content": "<|new|>", "special": True}, str(size + 9): {"content": "<|far|>", "special": True}}
    write(folder, "tokenizer_config.json", CONFIG | {"added_tokens_decoder": added})
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.encode("<|new|>", add_special_tokens=False) == [size]
    assert tokenizer.vocab_size == size + 1


def test_truncation_is_the_engines(folder):
    """Truncation and padding in a tokenizer.json are disabled."""
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    backend.save(str(folder / "tokenizer.json"))
    assert Tokenizer.load(folder).decode(Tokenizer.load(folder).encode("a long text")) == "a long text"


BROKEN = [
    ("tokenizer.json", "{}", "tokenizer.json is no tokenizer"),
    ("tokenizer_config.json", "[", "tokenizer_config.json is no JSON"),
    ("tokenizer_config.json", "[]", "tokenizer_config.json must be a JSON object"),
    ("chat_template.jinja", "{% if %}", "chat template .* cannot be used: .* line 1"),
    ("tokenizer_config.json", '{"chat_template": [{"name": "x"}]}', "must have a 'name' and a 'template'"),
]


@pytest.mark.parametrize("name, content, message", BROKEN)
def test_broken_folders(folder, name, content, message):
    """An invalid file is named in the error with the problem."""
    write(folder, name, content)
    with pytest.raises(EngineError, match=message):
        Tokenizer.load(folder)


def test_no_tokenizer(tmp_path):
    """The error for a folder without a tokenizer names the file to save there."""
    with pytest.raises(EngineError, match=r"has no tokenizer\.json: save"):
        Tokenizer.load(tmp_path)


def test_text_that_is_no_text(folder):
    """Half of a surrogate pair, which JSON can contain, is refused."""
    with pytest.raises(EngineError, match="surrogate"):
        Tokenizer.load(folder).encode("a\ud83d")
