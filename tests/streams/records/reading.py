"""What tests of streams of records share."""

from dataclasses import dataclass, field
from typing import Any

from streamlearn.streams.records import Quarantined, RecordStream


@dataclass
class Seen:
    """All that a stream handed out."""

    features: list[dict[str, Any]] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    skipped: list[Quarantined] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def take(self, rows: Any) -> None:
        self.features += rows.features
        self.targets += rows.targets
        self.index += rows.index
        self.skipped += rows.skipped
        self.sizes.append(len(rows.targets) + len(rows.skipped))


def read(stream: RecordStream, size: int = 4, most: int | None = None, **more: Any) -> Seen:
    """The next batches, to the end or so many; closes the stream at the end."""
    seen = Seen()
    for number, batch in enumerate(stream.batches(size, **more), start=1):
        seen.take(batch.rows)
        assert batch.position == stream.position
        if number == most:
            return seen
    stream.close()
    return seen
