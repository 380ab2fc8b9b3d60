"""Runbooks that are each wrong in one way, made from one that is right by replacing a few words of it."""

RIGHT = r"""apiVersion: vdbg-env/v1
kind: Runbook
metadata: {name: right, title: A runbook that is right}
spec:
  inputs:
    argv: {type: array, required: true}
    tries: {type: int, default: 3}
  matchers:
    failure: {regex: 'illegal memory access (?P<what>\w+)'}
  commands:
    workload:
      argv: "${{ inputs.argv }}"
      timeout: 30m
      kill: {signal: SIGTERM, grace: 15s}
      output: {limit: 2GiB}
  steps:
    - id: preflight
      uses: builtin/gpu-health@v1
      outcomes:
        - fail: {when: "results.gpus == 0", rule: R1, level: error, message: "none, ${{ inputs.tries }}", next: end}
        - pass: {next: baseline}
    - id: baseline
      run: workload
      env: {CUDA_LAUNCH_BLOCKING: "1", NCCL_DEBUG: null}
      argv: {append: [--eager], remove: ["--port VALUE"]}
      engine_args: {enforce_eager: true}
      repeat: {count: 3, until: has(matched.failure)}
      artifacts:
        cores: {path: "core.*", max_size: 1GiB}
      outcomes:
        - reproduced: {when: has(matched.failure), message: "saw ${{ matched.failure.groups.what }}", next: ask}
        - hang: {when: "ended.by == 'watch'", next: end}
        - unresolved: {next: report}
    - id: ask
      if: inputs.tries > 2
      manual:
        prompt: Again?
        choices: {again: baseline, stop: report}
        timeout: 1h
        default: stop
      skipped: {next: report}
    - id: report
      uses: builtin/report@v1
      outcomes:
        - pass: {next: end}
"""

# Name -> (words of RIGHT, what stands there instead). The name says what is wrong.
BROKEN: dict[str, tuple[str, str]] = {
    "api version": ("vdbg-env/v1", "vdbg-env/v2"),
    "unknown kind": ("kind: Runbook", "kind: Runbok"),
    "no title": (", title: A runbook that is right", ""),
    "name with blanks": ("name: right", "name: Not Right"),
    "misspelt section": ("  matchers:", "  machers:"),
    "a key of another kind of step": (
        "      uses: builtin/gpu-health@v1\n",
        "      uses: builtin/gpu-health@v1\n      repeat: {count: 2}\n",
    ),
    "misspelt step key": ("      repeat: {count", "      repaet: {count"),
    "runbook of an expression that names nothing": (
        "- hang: {when: \"ended.by == 'watch'\", next: end}",
        '- hang: {when: "ended.by == \'watch\'", next: {runbook: "${{ results.runbok }}"}}',
    ),
    "runbook of an expression before anything was seen": (
        "skipped: {next: report}",
        'skipped: {next: {runbook: "${{ inputs.tries }}"}}',
    ),
    "misspelt outcome": ("- reproduced:", "- reproducd:"),
    "two outcomes in one": ("- pass: {next: baseline}", "- {pass: {next: baseline}, warn: {next: end}}"),
    "no step kind": ("      run: workload\n", ""),
    "no outcomes": ("      outcomes:\n        - pass: {next: end}\n", ""),
    "outcome without next": ("- unresolved: {next: report}", "- unresolved: {}"),
    "next to no step": ("next: baseline}", "next: baselin}"),
    "next to no runbook": ("next: baseline}", "next: {runbook: kernel-hangs}}"),
    "unreached step": ("- pass: {next: baseline}", "- pass: {next: report}"),
    "circle": ("- unresolved: {next: report}", "- unresolved: {next: baseline}"),
    "circle by default": ("default: stop", "default: again"),
    "default that is no choice": ("default: stop", "default: stopp"),
    "two steps of one name": ("- id: ask", "- id: report"),
    "step called end": ("- id: preflight", "- id: end"),
    "dash in a step": ("- id: preflight", "- id: pre-flight"),
    "last outcome with when": ("- unresolved: {next: report}", '- unresolved: {when: "true", next: report}'),
    "outcome never reached": ("""when: "ended.by == 'watch'", next: end""", "next: end"),
    "syntax of an expression": ("has(matched.failure), message", "has(matched.failure, message"),
    "unknown root": ("when: has(matched.failure)", "when: has(match.failure)"),
    "unknown matcher": ("when: has(matched.failure)", "when: has(matched.failur)"),
    "unknown member": ("ended.by == 'watch'", "ended.bye == 'watch'"),
    "unknown input": ("inputs.tries > 2", "inputs.tires > 2"),
    "unknown result": ("results.gpus == 0", "results.gpu == 0"),
    "unknown step in an expression": ("if: inputs.tries > 2", "if: steps.baselin.outcome == 'hang'"),
    "ended is not known before a start": ("if: inputs.tries > 2", "if: ended.clean"),
    "condition that is no condition": ("if: inputs.tries > 2", "if: \"'yes'\""),
    "types that do not fit": ("if: inputs.tries > 2", "if: \"'a' + 1 == 2\""),
    "template that never ends": ("${{ matched.failure.groups.what }}", "${{ matched.failure.text"),
    "template of no name": ("${{ matched.failure.groups.what }}", "${{ __import__('os').system('id') }}"),
    "template into Python": ("${{ matched.failure.groups.what }}", "${{ ''.__class__.__mro__ }}"),
    "pattern that does not compile": (r"(?P<what>\w+)", r"(?P<what>\w+"),
    "pattern with a class by name": (r"(?P<what>\w+)", "[[:alpha:]]+"),
    "pattern that looks back": (r"(?P<what>\w+)", r"(\w)\1"),
    "pattern of everything": (r"illegal memory access (?P<what>\w+)", ".*"),
    "duration without unit": ("timeout: 30m", "timeout: 30"),
    "duration of no kind": ("timeout: 30m", "timeout: half an hour"),
    "size of no kind": ("limit: 2GiB", "limit: 2 Gigs"),
    "unknown signal": ("signal: SIGTERM", "signal: SIGTREM"),
    "unknown command": ("run: workload", "run: workloda"),
    "unknown built-in": ("builtin/gpu-health@v1", "builtin/gpu-helth@v1"),
    "built-in without version": ("builtin/gpu-health@v1", "gpu-health"),
    "reader used as step": ("builtin/gpu-health@v1", "builtin/nccl-log@v1"),
    "parameter of no built-in": ("uses: builtin/report@v1", "uses: builtin/report@v1\n      with: {format: [html]}"),
    "number as variable": ('CUDA_LAUNCH_BLOCKING: "1"', "CUDA_LAUNCH_BLOCKING: 1"),
    "variable with a dash": ('CUDA_LAUNCH_BLOCKING: "1"', 'CUDA-LAUNCH-BLOCKING: "1"'),
    "removes no flag": ('remove: ["--port VALUE"]', 'remove: ["port"]'),
    "command line as a string": ('argv: "${{ inputs.argv }}"', 'argv: "vllm serve M; rm -rf /"'),
    "engine argument with dashes": ("enforce_eager: true", "enforce-eager: true"),
    "artifact outside": ('path: "core.*"', 'path: "/etc/passwd"'),
    "default that is no choice of an input": ("type: int, default: 3", "type: string, choices: [a, b], default: c"),
    "choices of a number": ("type: int, default: 3", "type: int, choices: ['3'], default: 3"),
    "default of another type": ("type: int, default: 3", "type: int, default: three"),
    "rule without level": ("rule: R1, level: error", "rule: R1"),
    "unknown level": ("level: error", "level: eror"),
    "shared step that is not there": ("uses: builtin/gpu-health@v1", "from: preflght"),
    "unknown tool": ("      run: workload\n", "      run: workload\n      requires: {tools: [cuda-gbd]}\n"),
    "repeat of nothing": ("count: 3", "count: 0"),
    "input with a dash": ("    tries: {", "    num-tries: {"),
    "input that nothing uses": ("    tries: {", "    spare: {type: string}\n    tries: {"),
    "duplicate key": ("    tries: {type: int", "    argv: {type: string}\n    tries: {type: int"),
    "alias": ("prompt: Again?", "prompt: &a Again?\n        extra: *a"),
}


def broken(name: str) -> str:
    """Return the runbook that is wrong as `name` says."""
    words, instead = BROKEN[name]
    assert words in RIGHT, f"{words!r} is not in the right runbook"
    return RIGHT.replace(words, instead, 1)
