"""What patch did, and what patched modules have served since: two lists in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

LISTED = 3
Words = tuple[str, str, str]


@dataclass(frozen=True)
class Report:
    """What fuseline.patch did; str() of it is a list.

    replaced  (name, class) of each module that runs on fuseline now; of a chain the first's name,
              all classes
    kept      (name, class, why) of each that looks like a norm or holds a chain and was left alone
    partly    (name, class, why) of each replaced one, some of whose calls are its own forward's
    """

    replaced: tuple[tuple[str, str], ...]
    kept: tuple[Words, ...]
    partly: tuple[Words, ...] = ()

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} modules run on fuseline now"]
        lines += [f"  {text}" for text in _grouped((n, c, "") for n, c in self.replaced)]
        if self.partly:
            lines.append(f"{len(self.partly)} of them in part")
            lines += [f"  {text}" for text in _grouped(self.partly)]
        if self.kept:
            lines.append(f"{len(self.kept)} were left alone")
            lines += [f"  {text}" for text in _grouped(self.kept)]
        return "\n".join(lines)


@dataclass(frozen=True)
class Calls:
    """The eager calls of a patched module or chain since then; compiled ones are not counted.

    served  on fuseline's kernels
    own     by the module's own forward: why, and how many
    """

    name: str
    kind: str
    served: int
    own: dict[str, int]


@dataclass(frozen=True)
class PatchStatus:
    """What fuseline.patch_status returns; str() of it is a list."""

    modules: tuple[Calls, ...]

    def __str__(self) -> str:
        served = sum(m.served for m in self.modules)
        lines = [f"{len(self.modules)} patched modules served {served} eager calls"]
        totals: dict[tuple[str, str], list[int]] = {}
        for m in self.modules:
            for why, count in m.own.items():
                totals.setdefault((m.kind, why), []).append(count)
        lines += [
            f"  {kind}: {sum(counts)} calls of {len(counts)} modules to their own forward: {why}"
            for (kind, why), counts in totals.items()
        ]
        return "\n".join(lines)


def _grouped(words: Iterable[Words]) -> Iterator[str]:
    """One line for each class and reason: how many, and the first names."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, own, why in words:
        groups.setdefault((own, why), []).append(name or "the model itself")
    for (own, why), names in groups.items():
        more = f", ... ({len(names)} in all)" if len(names) > LISTED else ""
        yield f"{own}: {', '.join(names[:LISTED])}{more}" + (f": {why}" if why else "")
