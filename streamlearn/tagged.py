"""Names and labels of any type as JSON, each with its type, so that they come back as they were."""

from collections.abc import Sequence
from typing import Any

from streamlearn.errors import FormatError

__all__ = ["Tags"]


class Tags:
    """What turns Python objects into JSON values and back.

    None, booleans, numbers, text, bytes and tuples of these are written as they are. Any other
    object is put aside, to be kept by whoever can, a pickle for one; a file can not.

    Args:
        objects: those that were put aside when what is now read was written.
    """

    def __init__(self, objects: Sequence[Any] = ()) -> None:
        self.objects = list(objects)

    def encode(self, value: Any) -> Any:
        """A JSON value that `decode` turns back."""
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return {"float": value.hex()}
        if kind is bytes:
            return {"bytes": value.hex()}
        if kind in (tuple, list):
            return {kind.__name__: [self.encode(item) for item in value]}
        if kind is dict:
            return {"dict": [[self.encode(k), self.encode(v)] for k, v in value.items()]}
        self.objects.append(value)
        return {"object": len(self.objects) - 1}

    def decode(self, value: Any) -> Any:
        """What `encode` was given.

        Raises:
            FormatError: no such value.
        """
        if not isinstance(value, dict):
            return value
        (kind, held), *more = value.items()
        if not more and kind == "float":
            return float.fromhex(held)
        if not more and kind == "bytes":
            return bytes.fromhex(held)
        if not more and kind in ("tuple", "list"):
            items = [self.decode(item) for item in held]
            return tuple(items) if kind == "tuple" else items
        if not more and kind == "dict":
            return {self.decode(key): self.decode(item) for key, item in held}
        if not more and kind == "object" and 0 <= held < len(self.objects):
            return self.objects[held]
        raise FormatError(f"{value!r} is no saved name or label; the file is damaged")

    def refuse(self) -> None:
        """Whether everything that was encoded can stand in a file.

        Raises:
            FormatError: something was put aside.
        """
        if self.objects:
            first = self.objects[0]
            raise FormatError(
                f"{first!r} is a {type(first).__name__}, which a file cannot hold; use strings, "
                "numbers or booleans as labels, names and categories, or pickle the model"
            )
