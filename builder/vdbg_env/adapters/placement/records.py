"""What the ranks of an attempt wrote into its folder, for placements whose ranks run on other nodes."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vdbg_env.adapters.placement.rank.observe import observe
from vdbg_env.adapters.placement.rank.orders import ENDED, KEY, NODE, SEAL, Orders, sealed
from vdbg_env.common.reading import read_document
from vdbg_env.common.writing import NotAFile
from vdbg_env.evidence.observation import Ended, EndedBy, Observation
from vdbg_env.record.codec import from_document
from vdbg_env.supervisor.state import lock_file, result_file

SILENT_S = 3.0 * lock_file.BEAT_S  # a supervisor that did not touch its file for so long is dead
_FORGED = "something else had written an end of this rank while it ran, which was passed over"


class RankRecords:
    """The records in one attempt's folder."""

    def __init__(self, directory: Path, orders: Orders) -> None:
        self._directory = directory
        self._orders = orders
        self._forged: set[int] = set()

    def read_ends(self, seen: dict[int, Observation], ranks: int) -> None:
        """Add the observations that the attempt's `ranks` have written since, each by its number.

        What is no rank's is passed over: the supervisor's own record, or its silence, counts. A rank that has ended
        writes over what another one's workload wrote in its name.
        """
        with suppress(FileNotFoundError):  # a workload can remove the folder
            for path in (self._directory / ENDED).iterdir():
                if path.name.isdecimal() and (rank := int(path.name)) < ranks and rank not in seen:
                    with suppress(NotAFile, ValueError):
                        document = read_document(path)
                        key = str(document.pop(KEY, "")) if isinstance(document, dict) else ""
                        found = from_document(Observation, document)
                        if found.rank != rank:
                            continue
                        if not self._is_sealed(rank, key):
                            self._forged.add(rank)
                            continue
                        note = (_FORGED,) if rank in self._forged else ()
                        seen[rank] = replace(found, notes=(*found.notes, *note))

    def _is_sealed(self, rank: int, key: str) -> bool:
        """Return whether a key is the one that the rank sealed before its workload began."""
        for folder in self._directory.glob(f"*-{rank}"):
            with suppress(OSError, ValueError, KeyError, TypeError):
                if read_document(folder / NODE)[SEAL] == sealed(key):
                    return True
        return False

    def any_started(self) -> bool:
        """Return whether a rank has made its folder."""
        return any(path.is_dir() for path in self._directory.glob("*-*"))

    def folder(self, rank: int) -> Path | None:
        """Return the folder of a rank; None where it made none."""
        found = sorted(path for path in self._directory.glob(f"*-{rank}") if path.is_dir())
        return found[-1] if found else None

    def half_written(self, folder: Path) -> Observation | None:
        """Return what is known of a rank whose supervisor wrote the workload's end, and which died before its own."""
        if not (folder / result_file.NAME).exists():
            return None
        literals = tuple(os.fsencode(text) for text in self._orders.others.literals)
        seen = from_document(Observation, observe(self._orders, folder, None, literals, (), 0))
        where = self._orders.scratch
        note = f"it died before it could move its dumps: they are on {seen.host}, below {where}"
        return replace(seen, notes=(*seen.notes, note)) if where else seen

    def without_end(self, rank: int, ended: Ended, *, host: str = "", notes: tuple[str, ...] = ()) -> Observation:
        """Return the observation of a rank that left none; `host` where it is known."""
        folder = self.folder(rank)
        host = folder.name.rpartition("-")[0] if folder else host
        return Observation(
            step=self._orders.step,
            attempt=self._orders.attempt,
            rank=rank,
            host=host or "unknown",
            ended=ended,
            duration_s=0.0,
            directory=str(folder.relative_to(self._directory.parents[2])) if folder else "",
            notes=notes,
        )

    def lost(self, rank: int, why: str) -> Observation:
        """Return the observation of a rank that was lost with its node."""
        return self.without_end(rank, Ended(by=EndedBy.NODE_LOST, message=why))

    def silent_for(self, folder: Path) -> float:
        """Return the seconds since a supervisor last touched its file, both by the file server's clock."""
        now = self._directory / ".now"
        now.touch()
        try:
            # One of the future is not a beat: a supervisor that lives sets it to now.
            return abs(now.stat().st_mtime - (folder / lock_file.NAME).stat().st_mtime)
        except FileNotFoundError:
            return float("inf")
        finally:
            now.unlink()
