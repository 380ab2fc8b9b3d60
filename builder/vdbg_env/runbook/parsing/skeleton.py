"""A runbook to start from: short, commented, and right as it is."""

from __future__ import annotations

from vdbg_env.common.errors import BadInput
from vdbg_env.runbook.model.fields import is_name

_TEXT = """\
# yaml-language-server: $schema={schema}
apiVersion: vdbg-env/v1
kind: Runbook
metadata:
  name: {name}  # also the name of this file
  title: What fails, in a few words
spec:
  inputs:
    argv: {{type: array, required: true, description: "The workload: the words after --"}}
    request: {{type: path, description: "Recorded requests (JSON lines) for a server; give them with -i request=FILE"}}
    url: {{type: string, default: "http://127.0.0.1:8000"}}
  matchers:
    failure: {{regex: 'illegal memory access'}}  # how the log looks when it fails
  commands:
    workload:
      argv: "${{{{ inputs.argv }}}}"
      # A server gets the recorded requests once it is ready; without any, the command runs until it ends.
      driver: {{replay: "${{{{ inputs.request }}}}", ready: {{http: "${{{{ inputs.url }}}}/health", timeout: 20m}}}}
      timeout: 40m
  steps:
    - id: baseline
      name: Does it fail unchanged?
      run: workload
      repeat: {{count: 3, until: has(matched.failure)}}
      outcomes:  # the first whose 'when' holds is taken; the last has none
        - reproduced: {{when: has(matched.failure), next: blocking}}
        - not_reproduced: {{when: ended.clean, next: end}}
        - unresolved: {{next: end}}

    # A step changes what it names and nothing else: each starts from the command as given.
    - id: blocking
      name: Does it fail with synchronous launches?
      run: workload
      env: {{CUDA_LAUNCH_BLOCKING: "1"}}
      outcomes:
        - reproduced:
            when: has(matched.failure)
            rule: EXAMPLE1
            level: warning
            message: "it fails at the launch that is named: ${{{{ matched.failure.text }}}}"
            next: report
        - unresolved: {{next: report}}

    - id: report
      from: report  # a shared step: vdbg-env runbooks explain report
"""


def skeleton(name: str, schema: str) -> str:
    """Return the text of a new runbook; `schema` is the file or URL of the JSON Schema, for editors."""
    if not is_name(name):
        raise BadInput(
            f"{name!r} cannot name a runbook: small letters, digits, '-' and '_', a letter first",
            next_step="choose another name, such as my-crash",
        )
    return _TEXT.format(name=name, schema=schema)
