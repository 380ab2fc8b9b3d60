"""The outside world as Protocols of few verbs, and the values that cross them.

| module | what of the outside |
| --- | --- |
| `files` | what is read: binaries, core dumps, logs, lines of source |
| `programs` | short helper programs |
| `images` | the sources of images, building them, and handing them on |
| `containers` | starting containers from them |
| `dumps` | where dumps are kept, and how one is asked for |
| `steps` | running the steps of a runbook; clocks and signals |

Adapters implement these and are made only in `vdbg_env.cli.composition`; tests give typed fakes for decisions only.
All of them are imported from here. What they only name in a signature is imported for type checkers alone: `locate`
must not load the planner of images because another command does.
"""

from vdbg_env.application.ports.containers import ContainerRunner, GpuAccess, StoredImage
from vdbg_env.application.ports.core_dumps import (
    CorePipes,
    DumpDestination,
    DumpFile,
    DumpStore,
    DumpTarget,
    FiredDump,
    PipeState,
)
from vdbg_env.application.ports.files import (
    BinaryFile,
    BinarySource,
    Buffer,
    CoreFile,
    CoreFiles,
    LogFile,
    LogSource,
    ScratchFiles,
    SourceText,
)
from vdbg_env.application.ports.images import (
    NOTHING_LENT,
    BuilderDescription,
    BuilderName,
    BuildOrder,
    BuildxOptions,
    BundleFiles,
    ImageBuilder,
    PushProgress,
    SourceTrees,
)
from vdbg_env.application.ports.programs import Completed, ProgramRunner
from vdbg_env.application.ports.steps import (
    Clock,
    Interrupts,
    IsolatedWorker,
    Layout,
    StartedAttempt,
    StartedStep,
    StepPlacement,
    StepRunner,
)

__all__ = [
    "NOTHING_LENT",
    "BinaryFile",
    "BinarySource",
    "Buffer",
    "BuildOrder",
    "BuilderDescription",
    "BuilderName",
    "BuildxOptions",
    "BundleFiles",
    "Clock",
    "Completed",
    "ContainerRunner",
    "CoreFile",
    "CoreFiles",
    "CorePipes",
    "DumpDestination",
    "DumpFile",
    "DumpStore",
    "DumpTarget",
    "FiredDump",
    "GpuAccess",
    "ImageBuilder",
    "Interrupts",
    "IsolatedWorker",
    "Layout",
    "LogFile",
    "LogSource",
    "PipeState",
    "ProgramRunner",
    "PushProgress",
    "ScratchFiles",
    "SourceText",
    "SourceTrees",
    "StartedAttempt",
    "StartedStep",
    "StepPlacement",
    "StepRunner",
    "StoredImage",
]
