"""Messages whose schema is a text in a module: only the fields that the gateway has a use for.

A line each: the message, and its fields as name:number:type. `*` says repeated, `%` a map from string. Enums are int32,
and the members of a oneof plain fields: on the wire they are the same.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from gateway.protocol.protobuf import Message, MessageClass, read_message

if TYPE_CHECKING:
    from google.protobuf.descriptor_pool import DescriptorPool

_LABEL_OPTIONAL, _LABEL_REPEATED = 1, 3
_SCALARS = {"double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12}
_SCALARS |= {"uint32": 13}
_MESSAGE = 11
_KEY, _VALUE = 1, 2  # the fields of a map's entry


class TextSchema:
    """Classes by a message's own name, `PredictRequest`; protobuf is loaded for the first that is used."""

    def __init__(self, text: str) -> None:
        self._lines = [line.split() for line in text.split("\n") if line]
        self._full_names = {line[0].rpartition(".")[2]: line[0] for line in self._lines}
        self._classes: dict[str, MessageClass] = {}

    def message(self, name: str) -> MessageClass:
        """The class of a message. Raises: KeyError."""
        from google.protobuf.message_factory import GetMessageClass

        found = self._classes.get(name)
        if found is None:
            found = self._classes[name] = GetMessageClass(self._pool.FindMessageTypeByName(self._full_names[name]))
        return found

    def parse(self, name: str, data: bytes) -> Message:
        """A message read from its serialised form. Raises: ValueError where it is malformed."""
        return read_message(self.message(name), data)

    @cached_property
    def _pool(self) -> DescriptorPool:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from google.protobuf.descriptor_pool import DescriptorPool

        files: dict[str, Message] = {}
        for name, *fields in self._lines:
            package, _, own = name.rpartition(".")
            if package not in files:
                files[package] = FileDescriptorProto(
                    name=f"{package}.proto",
                    package=package,
                    syntax="proto3",
                    dependency=[f"{known}.proto" for known in files],
                )
            self._describe(files[package].message_type.add(name=own), name, fields)
        descriptors = DescriptorPool()
        for file in files.values():
            descriptors.Add(file)
        return descriptors

    def _describe(self, described: Message, full_name: str, fields: list[str]) -> None:
        for field in fields:
            name, number, kind = field.split(":")
            declared = described.field.add(name=name, number=int(number))
            declared.label = _LABEL_REPEATED if kind[0] in "*%" else _LABEL_OPTIONAL
            if kind[0] != "%":
                self._set_type(declared, kind.lstrip("*"))
                continue
            entry = described.nested_type.add(name="".join(map(str.title, name.split("_"))) + "Entry")
            entry.options.map_entry = True
            self._set_type(entry.field.add(name="key", number=_KEY, label=_LABEL_OPTIONAL), "string")
            self._set_type(entry.field.add(name="value", number=_VALUE, label=_LABEL_OPTIONAL), kind[1:])
            declared.type, declared.type_name = _MESSAGE, f".{full_name}.{entry.name}"

    def _set_type(self, field: Message, kind: str) -> None:
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type, field.type_name = _MESSAGE, f".{self._full_names[kind]}"
