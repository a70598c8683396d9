"""Rendering and reading of chat templates."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import orjson
import pytest

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Media, Message, Reasoning, Text, Tool, ToolCall
from gateway.protocol.llm.templates import read_template

HI = [{"role": "user", "content": "Hi"}]

# A template in the style of ChatML.
CHATML = """
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('Unknown role: ' + message.role) }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\n' + message.content | trim + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""


def test_a_conversation() -> None:
    """The messages are followed by the generation prompt, unless that is turned off."""
    messages = [Message("system", (Text("Be brief."),)), Message("user", (Text(" Hi "),))]
    template = read_template(CHATML)
    written = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert template.render(messages) == written + "<|im_start|>assistant\n"
    assert template.render(messages, add_generation_prompt=False) == written


def test_a_template_refuses_a_conversation() -> None:
    """An error that the template raises is a bad request with the template's message."""
    with pytest.raises(GatewayError, match="Unknown role: critic") as raised:
        read_template(CHATML).render([{"role": "critic", "content": "Hi"}])
    assert raised.value.kind is ErrorKind.BAD_REQUEST


PRINTED: list[tuple[str, dict[str, Any], str]] = [
    # blocks leave no blank lines
    ("{% if true %}\n  {% if true %}\na\n  {% endif %}\n{% endif %}\n", {}, "a\n"),
    # JSON without HTML escapes
    ("{{ {'a': \"<ü'>\"} | tojson }}", {}, '{"a": "<ü\'>"}'),
    ("{{ {'b': [1, none], 'a': true} | tojson(indent=2, sort_keys=true) }}", {},
     '{\n  "a": true,\n  "b": [\n    1,\n    null\n  ]\n}'),
    # loop controls, namespaces, macros
    ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}"
     "{% endfor %}", {}, "023"),
    ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", {}, "1"),
    ("{% macro f(x, y='-') %}{{ x ~ y }}{% endmacro %}{{ f(1) }}{{ f(2, y=3) }}", {}, "1-23"),
    ("{% call(x) g() %}[{{ x }}]{% endcall %}", {"g": lambda caller: caller(5)}, "[5]"),
    # generation blocks, which mark text for training, are printed as other text
    ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", {}, "Hi!"),
    ("{{ messages[0]['content'][::-1] }}{{ messages[-1:] | length }}{{ messages[0].content[1:] }}", {}, "iH1i"),
    ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}", {}, "Hi"),
    ("{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ loop.last }}{% else %}none{% endfor %}", {},
     "1True"),
    ("{{ 'a,b'.split(',') | join('+') }}{{ 'x'.replace('x', 'yy') }}{{ '%s=%d' % ('n', 5) }}{{ '{}'.format(1) }}", {},
     "a+byyn=51"),
    ("{{ 'day 20250101: %s {{' % 1 }}{{ '{{{}}} 20250101'.format(1) }}", {}, "day 20250101: 1 {{{1} 20250101"),
    ("{{ 'a' in 'cat' }} {{ 1 in [2] }} {{ 2 ** 10 }} {{ 'ab' * 2 }} {{ [1] + [2] }}", {},
     "True False 1024 abab [1, 2]"),
    ("{% set x %}<{{ messages[0].content }}>{% endset %}{{ x }}{{ x | length }}", {}, "<Hi>4"),
    ("{% filter upper %}a{{ messages[0].content }}{% endfilter %}", {}, "AHI"),
    # variables besides the messages
    ("{{ enable_thinking }}{{ tools }}{{ documents }}", {"enable_thinking": False}, "FalseNoneNone"),
    ("{{ strftime_now('%Y') }}", {"strftime_now": lambda form: form + "!"}, "%Y!"),
    ("{{ strftime_now is defined }}{{ bos_token is defined }}", {}, "FalseFalse"),
]  # fmt: skip


@pytest.mark.parametrize("source, extra, printed", PRINTED)
def test_what_templates_do(source: str, extra: dict[str, Any], printed: str) -> None:
    """Templates render as in transformers."""
    assert read_template(source).render(HI, **extra) == printed


@pytest.mark.parametrize("source", [CHATML, *(source for source, extra, _ in PRINTED[:-1] if not extra)])
def test_templates_print_as_in_transformers(source: str) -> None:
    """The output equals that of transformers, if it is installed."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    printed, _ = utils.render_jinja_template([HI], chat_template=source, add_generation_prompt=True)
    assert read_template(source).render(HI) == printed[0]


def test_messages_as_templates_know_them() -> None:
    """Text is one string, media are parts, and reasoning and tool calls are separate fields."""
    call = ToolCall("c1", "add", '{"a": 1}')
    messages = [
        Message("user", (Text("what "), Text("now"))),
        Message("user", (Text("see"), Media("image", "data:image/png;base64,AA"), Media("audio", "data:x"))),
        Message("assistant", (Reasoning("hm"), Text("ok")), (call, ToolCall("c2", "bad", "not json"))),
        Message("tool", (Text("3"),), tool_call_id="c1", name="add"),
    ]
    assert orjson.loads(read_template("{{ messages | tojson }}").render(messages)) == [
        {"role": "user", "content": "what now"},
        {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image"}, {"type": "audio"}]},
        {
            "role": "assistant",
            "content": "ok",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}},
                {"id": "c2", "type": "function", "function": {"name": "bad", "arguments": "not json"}},
            ],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"},
    ]


def test_tools_as_templates_know_them() -> None:
    """Tools have OpenAI's form; without tools the variable is None."""
    tool = Tool("add", "adds", {"type": "object"})
    assert orjson.loads(read_template("{{ tools | tojson }}").render(HI, [tool])) == [
        {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}
    ]
    assert read_template("{{ tools is none }}").render(HI) == "True"


def test_a_developer_is_the_system_of_older_models() -> None:
    """The developer role becomes `system` unless the template knows it."""
    message = [Message("developer", (Text("x"),))]
    assert read_template("{{ messages[0].role }}").render(message) == "system"
    assert read_template("{# developer #}{{ messages[0].role }}").render(message) == "developer"


# Files


@pytest.mark.parametrize(
    "config",
    [
        {"chat_template": "{{ bos_token }}A{{ eos_token }}"},
        {"chat_template": [{"name": "default", "template": "{{ bos_token }}A{{ eos_token }}"}]},
        {"chat_template": {"default": "{{ bos_token }}A{{ eos_token }}"}},
    ],
)
def test_a_tokenizers_configuration(config: dict[str, Any]) -> None:
    """The template and the special tokens are read from every form of tokenizer configuration."""
    text = orjson.dumps(config | {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": None}).decode()
    assert read_template(text).render(HI, keep_bos=True) == "<s>A</s>"


def test_the_token_that_begins_a_text_is_the_engines() -> None:
    """A leading BOS token is removed, since the engine's tokenizer adds it; it is kept if `add_bos_token` is false."""
    config = {"chat_template": "{{ bos_token }}{{ bos_token }}A", "bos_token": "<s>"}
    assert read_template(orjson.dumps(config).decode()).render(HI) == "<s>A"
    assert read_template(orjson.dumps(config | {"add_bos_token": False}).decode()).render(HI) == "<s><s>A"


def test_a_template_of_its_own_for_tools() -> None:
    """The template named `tool_use` renders requests with tools."""
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    template = read_template(orjson.dumps({"chat_template": named}).decode())
    assert (template.render(HI), template.render(HI, [Tool("f")])) == ("plain", "tools")


def test_jinja_beside_a_tokenizer() -> None:
    """A template in its own file takes its special tokens from the tokenizer configuration."""
    template = read_template("{{ bos_token }}{{ '{' }}A", '{"bos_token": "<s>"}')
    assert template.render(HI, keep_bos=True) == "<s>{A"


@pytest.mark.parametrize(
    "text, words",
    [
        ("{% for %}", "error in line 1"),
        ("\n{% if true %}", "error in line 2"),
        ("{{ x | wordwrap }}", "No filter named 'wordwrap'"),
        ('{"model_max_length": 5}', "no 'chat_template'"),
        ('{"chat_template": []}', "no 'chat_template'"),
        ('{"chat_template": [{"name": "x"}]}', "a 'name' and a 'template'"),
    ],
)
def test_what_is_no_template(text: str, words: str) -> None:
    """An invalid template or configuration raises a ValueError when it is read."""
    with pytest.raises(ValueError, match=words):
        read_template(text)


def test_jinja_is_loaded_with_the_first_template() -> None:
    """jinja2 is imported with the first template only."""
    script = (
        "import sys, gateway.protocol.llm.templates as t; before = 'jinja2' in sys.modules; "
        "t.read_template('x'); print(before, 'jinja2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"
