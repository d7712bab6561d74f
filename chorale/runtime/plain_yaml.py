"""YAML as people write it here: mappings, lists and the plain values of YAML 1.2's core schema.

PyYAML resolves by YAML 1.1, where `1e-3` is a text, `010` is 8 and `no` is false; Helm resolves by a third
mixture. So values are built here, from the events of libyaml's parser, and a value that YAML 1.1 and 1.2 read
differently is refused by name. What is written here reads the same by both.
Source: https://yaml.org/spec/1.2.2/ 10.3, https://yaml.org/type/ for YAML 1.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from crypto.errors import ConfigError, printable

MAX_DEPTH = 16
MAX_VALUES = 20_000  # names of fields included
MAX_DIGITS = 40  # Python reads hexadecimal numbers of any length, and then cannot write them down

WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
WORDS |= {form: WORDS[word] for word in ("null", "true", "false") for form in (word.title(), word.upper())}
INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
TRUTH_1_1 = re.compile(r"y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF")
# octal with a leading 0; binary; signs before a base; sixties such as 12:30; digits grouped by _
NUMBER_1_1 = re.compile(
    r"[-+]?0[0-9]+|[-+]?0b[01_]+|[-+]0[ox][0-9a-fA-F_]+|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"
    r"|(?=[^_]*_)[-+]?(?:0x[0-9a-fA-F_]+|[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*)"
)
DIRECTIVE = re.compile(r"^%", re.MULTILINE)
KEY_1_1 = re.compile(r"<<|=")
TWO_MEANINGS = {
    TRUTH_1_1: "write true or false, or put the text in quotes",
    NUMBER_1_1: "write the number in plain digits, or put the text in quotes",
    KEY_1_1: "put the text in quotes",
}


def parse(data: bytes, *, source: str) -> Any:
    """The value in the bytes: no aliases, tags, repeated keys, nor too many or too deep values.

    Raises ConfigError that names source, line and what is allowed. Security: builds plain values only
    (guarantee G5): aliases multiply, tags build what the text is not, repeated keys hide.
    """
    try:
        text = data.decode()
        if DIRECTIVE.search(text):  # libyaml compares each with all before it
            raise ConfigError(f"{source}: a line that begins with % is not allowed")
        return _Reader(text).document()
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: expected UTF-8 text") from None
    except yaml.MarkedYAMLError as error:
        place = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        raise ConfigError(f"{source}: {place}{_in_plain_words(error)}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: {str(error).splitlines()[0]}") from None


def dump(values: Any, *, in_one_line: bool = False) -> str:
    """The values as text that `parse` reads back as they are, in the order that they have. Security: one line
    for people has no character that `printable` escapes."""
    if not in_one_line:
        return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False))
    text = ""
    for is_escaped in (False, True):
        form: dict[str, Any] = {"default_flow_style": True, "width": 10**6, "allow_unicode": not is_escaped}
        text = yaml.dump(values, Dumper=_Dumper, sort_keys=False, **form)
        text = text.removesuffix("\n").removesuffix("\n...")
        if text == printable(text):
            break
    return text


class _Reader:
    """One document, event by event."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.CSafeLoader)
        self._values = 0

    def document(self) -> Any:
        """Raises yaml.YAMLError."""
        found = None
        nodes = (event for event in self._events if isinstance(event, yaml.NodeEvent))
        for place, event in enumerate(nodes):
            if place > 0:
                raise _invalid("expected one document, got another", event)
            found = self._node(event, name="", depth=1)
        return found

    def _node(self, event: yaml.Event, *, name: str, depth: int) -> Any:
        """name: of the field that the value belongs to."""
        self._values += 1
        if isinstance(event, yaml.AliasEvent):
            raise _invalid("aliases are not allowed", event)
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.tag is not None:
            raise _invalid("tags are not allowed", event)
        if depth > MAX_DEPTH:
            raise _invalid(f"expected at most {MAX_DEPTH} levels", event)
        if self._values > MAX_VALUES:
            raise _invalid(f"expected at most {MAX_VALUES} values", event)
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event, name)
        if isinstance(event, yaml.SequenceStartEvent):
            return [self._node(each, name=name, depth=depth + 1) for each in self._inner()]
        return self._mapping(depth)

    def _mapping(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for event in self._inner():
            is_text = isinstance(event, yaml.ScalarEvent)
            key = self._node(event, name="", depth=depth + 1) if is_text else None
            if not isinstance(key, str):
                raise _invalid(f"expected text as the name of a field{_in_quotes(event)}", event)
            if key in found:
                raise _invalid(f"{key} is given twice", event)
            found[key] = self._node(next(self._events), name=key, depth=depth + 1)
        return found

    def _inner(self) -> Iterator[yaml.Event]:
        """The first event of each node up to the end of the list or mapping that was begun."""
        while not isinstance(event := next(self._events), yaml.CollectionEndEvent):
            yield event


def _in_quotes(event: yaml.Event) -> str:
    """A number, or yes and no, as a name."""
    return f': write "{event.value[:MAX_DIGITS]}"' if isinstance(event, yaml.ScalarEvent) else ""


def _scalar(event: yaml.ScalarEvent, name: str) -> Any:
    text: str = event.value
    if not event.implicit[0]:  # in quotes, or a block of text
        return text
    if text in WORDS:
        return WORDS[text]
    for form, advice in TWO_MEANINGS.items():
        if form.fullmatch(text):
            field = f"{name}: " if name else ""
            raise _invalid(f"{field}{text[:MAX_DIGITS]!r} differs between YAML 1.1 and 1.2: {advice}", event)
    if INTEGER.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise _invalid(f"expected a number of at most {MAX_DIGITS} digits", event)
        return int(text, 0)
    if FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _invalid(problem: str, event: yaml.Event) -> yaml.MarkedYAMLError:
    mark: Any = event.start_mark
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def _in_plain_words(error: yaml.MarkedYAMLError) -> str:
    problem = str(error.problem or error.context)
    if "mapping values" in problem:
        return "expected one field and its value on a line; put text that has a colon in quotes"
    if "tab character" in problem:
        return "expected spaces before the field, got a tab"
    if "expected key" in problem or "<document start>" in problem or "could not find expected ':'" in problem:
        return "expected a field, its colon and its indentation like those before it"
    if "cannot start any token" in problem:
        return "a text begins with a character that has a meaning in YAML; put it in quotes"
    return problem.replace("did not find expected", "expected")


class _Dumper(yaml.SafeDumper):
    """Writes each text in quotes that YAML 1.1 or 1.2 would read as something else."""


_OTHER_THAN_TEXT = "|".join(form.pattern for form in (TRUTH_1_1, NUMBER_1_1, INTEGER, FLOAT))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"(?:{_OTHER_THAN_TEXT})\Z"), None)
