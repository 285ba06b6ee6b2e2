#!/usr/bin/env bash
# What action.yml runs: `ropeaudit check` of the targets, with annotations, a summary of the job and SARIF.
# Reads ROPEAUDIT_TARGETS (one a line), ROPEAUDIT_DTYPE, ROPEAUDIT_OPTIONS, and what GitHub's runner sets.
set -euo pipefail

targets=()
while IFS= read -r line; do
  read -r line <<<"$line" || true # without the spaces around it
  if [ -n "$line" ]; then targets+=("$line"); fi
done <<<"$ROPEAUDIT_TARGETS"
if [ "${#targets[@]}" -eq 0 ]; then
  echo "::error title=ropeaudit::no targets; name one a line, such as mypkg/rope.py:apply_rope" >&2
  exit 2
fi
read -ra options <<<"${ROPEAUDIT_OPTIONS:-}" || true
if [ -n "${ROPEAUDIT_DTYPE:-}" ]; then options+=(--dtype "$ROPEAUDIT_DTYPE"); fi

folder=$(mktemp -d "${RUNNER_TEMP:-/tmp}/ropeaudit.XXXXXX")
code=0
ropeaudit check "${targets[@]}" ${options[@]+"${options[@]}"} --github \
  -o "$folder/ropeaudit.sarif" -o "$folder/summary.md" || code=$?
if [ -f "$folder/ropeaudit.sarif" ]; then
  echo "sarif=$folder/ropeaudit.sarif" >>"$GITHUB_OUTPUT"
  cat "$folder/summary.md" >>"$GITHUB_STEP_SUMMARY"
fi
exit "$code"
