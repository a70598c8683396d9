"""Security and resource limits of chat templates."""

from __future__ import annotations

import tracemalloc

import pytest

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.template_sandbox import MAX_OUTPUT_CHARS
from gateway.protocol.llm.templates import Template, read_template

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


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ messages[0]['__class__'].__name__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ raise_exception.__code__.co_consts }}",
        "{{ self.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ (messages | attr('__class__')).__name__ }}",
        "{{ (messages | map(attribute='__class__') | first).__name__ }}",
        "{{ '{0.__class__.__mro__}'.format(messages) ~ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{% set messages[0].role = 'system' %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ open('/etc/passwd') }}",
        "{{ lipsum() }}",
        "{{ nobody.knows }}",
    ],
)
def test_a_template_reaches_nothing(source: str) -> None:
    """A template cannot access Python internals or files, and cannot change the conversation."""
    messages = [dict(message) for message in HI]
    with pytest.raises((GatewayError, ValueError)):
        read_template(source).render(messages)
    assert messages == HI


@pytest.mark.parametrize(
    "content", ["{{ 7 * 7 }}", "{% raise %}", "{{ ''.__class__ }}", "{0.__class__}", "%(x)s", "\x00"]
)
def test_a_message_is_text_and_no_template(content: str) -> None:
    """Template syntax in a message is printed verbatim."""
    assert read_template("{{ messages[0].content }}").render([{"role": "user", "content": content}]) == content


def test_formats_do_not_reach_attributes() -> None:
    """A format string in a message cannot print attributes of Python objects."""
    template = read_template("{{ messages[0].content.format(messages) }}")
    printed = template.render([{"role": "user", "content": "{0.__class__}{0.append}"}])
    assert "class" not in printed and "built-in" not in printed


GROWING = "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(64) %}"
LONG = "{% set s = 'x' * 1000000 %}{% for i in range(100000) %}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ range(10**9) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% set x = range(99999) | sum %}{% endfor %}",
        "{% for a in range(99999) %}{% set x = range(99999) | map('abs') | list %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ 'x' * 10**9 }}",
        "{{ [1] * 10**9 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 1000000000) }}",
        "{{ '{:>{}}'.format(1, '1000000000') }}",
        "{{ '{x:>1000000000}'.format_map({'x': 1}) }}",
        "{{ 'x' | center(10**9) }}",
        "{{ 'x' | indent(10**9) }}",
        "{{ 'x'.ljust(10**9) }}",
        "{{ 'x'.zfill(10**9) }}",
        "{{ {'a': 1} | tojson(indent=10**9) }}",
        GROWING + "{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        GROWING + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
        GROWING + "{% set ns.s = [ns.s, ns.s] | join %}{% endfor %}",
        GROWING + "{% set ns.s = ns.s | replace('x', 'xx') %}{% endfor %}",
        GROWING + "{% set ns.s = ns.s.replace('x', 'xx') %}{% endfor %}",
        GROWING + "{% set ns.s = ns.s.join([ns.s, ns.s]) %}{% endfor %}",
        GROWING + "{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}{% endfor %}",
        GROWING + "{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}",
        GROWING + "{% set ns.s = '{0}{0}'.format(ns.s) %}{% endfor %}",
        "{% set ns = namespace(n=3) %}{% for i in range(64) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        LONG + "{{ s }}{% endfor %}",
        LONG + "{% if 'y' in s %}{% endif %}{% endfor %}",
        LONG + "{% if s is eq(s[1:]) %}{% endif %}{% endfor %}",
        LONG + "{% set y = s[1:] %}{% endfor %}",
        LONG + "{% set y = s.split('x') %}{% endfor %}",
        LONG + "{% set y = s | upper %}{% endfor %}",
        f"{{% for i in range(99999) %}}{{% for j in range(99999) %}}{'static ' * 1000}{{% endfor %}}{{% endfor %}}",
        f"{{% set x %}}{{% for i in range(99999) %}}{'static ' * 1000}{{% endfor %}}{{% endset %}}",
    ],
)
def test_a_template_is_bounded(source: str) -> None:
    """A template that exceeds the limits on time or memory is rejected, and endless loops end."""
    with pytest.raises(GatewayError) as raised:
        read_template(source).render(HI)
    assert raised.value.kind is ErrorKind.BAD_REQUEST


WIDE = "{% set s = 'x' * 100000 %}"
WIDE_LIST = WIDE + "{% set l = [s] * 1500 %}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ (('\\t' * 1500).expandtabs(100000)) | length }}",
        "{{ (('\\t' * 1500).translate({9: 'b' * 100000})) | length }}",
        WIDE + "{{ (('{0}' * 1500).format(s)) | length }}",
        WIDE + "{{ (('{a}' * 1500).format_map({'a': s})) | length }}",
        WIDE + "{{ (('%(a)s' * 1500) % {'a': s}) | length }}",
        WIDE + "{{ (('%(a)s' * 1500) | format(a=s)) | length }}",
        WIDE_LIST + "{{ ('%s' % (l,)) | length }}",
        WIDE_LIST + "{{ ('%(a)s' * 5 % {'a': [l]}) | length }}",
        "{{ (('%(a)99999d' * 1500) % {'a': 1}) | length }}",
        "{{ (('%*d' * 1500) % ((99999, 1) * 1500)) | length }}",
        "{{ (('{0:99999}' * 1500).format(1)) | length }}",
        "{{ (('a\\n' * 1500) | indent(100000)) | length }}",
        "{{ ([1] * 1500) | tojson(indent=100000) | length }}",
        "{{ ([1] * 1500) | tojson(separators=('x' * 100000, '')) | length }}",
        WIDE_LIST + "{{ l | tojson | length }}",
        WIDE_LIST + "{{ l | string | length }}",
        WIDE_LIST + "{{ l | upper | length }}",
        WIDE_LIST + "{{ l | join | length }}",
        WIDE_LIST + "{{ ''.join(l) | length }}",
        WIDE_LIST + "{{ (l ~ '') | length }}",
        WIDE_LIST + "{{ l }}",
        WIDE_LIST + "{{ namespace(a=l) }}",
        WIDE + "{{ ([{'a': s}] * 1500) | map(attribute='a') | join | length }}",
        "{{ ([[1] * 100000] * 1500) | sum(start=[]) | length }}",
    ],
)
def test_a_long_text_is_refused_before_it_is_made(source: str) -> None:
    """What a template would make of little, by formats, widths, lists that hold one text many times, or methods that
    chats do not need, is refused while it takes no memory."""
    template = read_template(source)
    tracemalloc.start()
    try:
        with pytest.raises(GatewayError):
            template.render(HI)
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "source, printed",
    [
        ("{{ '%s: %05d, 100%%' % ('a', 7) }}", "a: 00007, 100%"),
        ("{{ '{0}-{b:>3}'.format('a', b=7) }}", "a-  7"),
        ("{{ [{'a': ['x', 1]}] | tojson(indent=2, separators=(',', ':')) | length }}", "46"),
        (
            "{{ ['a', 1] }} {{ ['a', 1] | join('-') }} {{ messages | map(attribute='role') | join }}",
            "['a', 1] a-1 user",
        ),
        ("{{ 'a\nb' | indent(2) }} {{ [1, 2] | sum }} {{ {'a': none} }}", "a\n  b 3 {'a': None}"),
    ],
)
def test_short_texts_are_printed(source: str, printed: str) -> None:
    """Formats, lists and JSON of templates print what jinja prints."""
    assert read_template(source).render(HI) == printed


def test_bounds_are_those_of_one_rendering() -> None:
    """The limits apply to each rendering: a template still works after one that exceeded them."""
    template = read_template("{% for i in range(messages[0].content | length) %}{{ messages[0].content }}{% endfor %}")
    long = [{"role": "user", "content": "x" * 100_000}]
    for _ in range(2):
        with pytest.raises(GatewayError, match="more than"):
            template.render(long)
        assert template.render(HI) == "HiHi"


def test_a_long_conversation_is_within_bounds() -> None:
    """A conversation of megabytes in thousands of turns stays within the limits."""
    messages = [{"role": "user", "content": "x" * 1000}] * 4000
    printed = read_template(CHATML).render(messages)
    assert 4_000_000 < len(printed) < MAX_OUTPUT_CHARS


def test_what_a_template_raises_is_the_requests_fault() -> None:
    """A Python error during rendering is a bad request."""
    template: Template = read_template("{{ messages[0].content | int / 0 }}{{ messages[0].content + 5 }}")
    with pytest.raises(GatewayError, match="division by zero"):
        template.render(HI)
