"""A plan as an Apptainer definition file: the same steps, the same environment, one %post."""

from __future__ import annotations

import re
import shlex

from vdbg_env.common.errors import BadInput
from vdbg_env.image.plan.plan import LABEL_DIGEST, ROOT, BuildPlan, CommandStep, CopyStep, shell_word
from vdbg_env.image.text import one_line


def apptainer(plan: BuildPlan) -> str:
    """Return the definition file of a plan, to be built in the folder that holds its context.

    Raises BadInput when the plan reads secrets, which a definition file has no way to keep out of the image.
    """
    if any(step.secrets for step in plan.steps if isinstance(step, CommandStep)):
        raise BadInput(
            "an Apptainer definition has no build secrets",
            next_step="build an image with `vdbg-env build --output image.tar` and convert it: "
            "apptainer build image.sif docker-archive:image.tar",
        )
    if any(step.objects for step in plan.steps if isinstance(step, CommandStep)):
        raise BadInput(
            "an Apptainer definition keeps no compiled objects between builds", next_step="leave --object-cache out"
        )
    sections = [
        f"# Rendered by vdbg-env from the profile {plan.profile}.\n"
        "# Build it with: apptainer build IMAGE.sif DIR/apptainer.def, in DIR.\n"
        "# Run it with: apptainer run --nv --bind DUMPS:/dumps IMAGE.sif",
        f"Bootstrap: docker\nFrom: {one_line(plan.base, 'the base image')}",
        _files(plan),
        _post(plan),
        _environment(plan),
        _labels(plan),
        f'%runscript\n    exec {" ".join(plan.entrypoint)} "${{@:-{" ".join(plan.command)}}}"',
    ]
    return "\n\n".join(sections) + "\n"


def _files(plan: BuildPlan) -> str:
    copies = [s for s in plan.steps if isinstance(s, CopyStep)]
    return "\n".join(["%files", *(f"    {s.source} {ROOT}/{s.target}" for s in copies)])


def _post(plan: BuildPlan) -> str:
    lines = ["%post -c /bin/sh", "    set -eu"]
    lines += [f'    export {arg.name}="${{{arg.name}:-{arg.default}}}"  # {arg.why}' for arg in plan.args]
    lines += _exports(plan)
    for step in plan.steps:
        if isinstance(step, CopyStep):
            continue
        folder = ROOT if step.cwd == "." else f"{ROOT}/{step.cwd}"
        lines += ["", f"    # {one_line(step.title, 'a title')}", f"    mkdir -p {folder}", "    (", f"    cd {folder}"]
        lines += [f"    export {variable.name}={shell_word(variable)}" for variable in step.env]
        lines += [f"    {_literal(command)}" for command in step.commands]
        lines.append("    )")
    return "\n".join(lines)


def _environment(plan: BuildPlan) -> str:
    return "\n".join(["%environment", *_exports(plan)])


def _exports(plan: BuildPlan) -> list[str]:
    return [f"    export {name}={_literal(shlex.quote(value))}" for name, value in plan.environment().items()]


def _labels(plan: BuildPlan) -> str:
    pairs = [*plan.labels, (LABEL_DIGEST, plan.digest)]
    lines = [f"    {name} {_literal(one_line(value, name))}" for name, value in pairs]
    return "\n".join(["%labels", *lines])


def _literal(text: str) -> str:
    """Keep Apptainer (1.2 on) from taking `{{ name }}` for an argument: within single quotes, '' adds nothing."""
    return re.sub(r"\{(?=\{)", "{''", text)
