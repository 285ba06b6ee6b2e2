"""What each tracker's form asks for: its headings, in their order, as GitHub shows a form that was sent.

Sources: .github/ISSUE_TEMPLATE of each repository, read in 2026: vllm 400-bug-report.yml, transformers
bug-report.yml, pytorch bug-report.yml, llama.cpp 019-bug-misc.yml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FILL_IN = "FILL IN"  # begins what the reporter alone knows


@dataclass(frozen=True, slots=True)
class Tracker:
    """A form. title: what stands before the title. url: where it is sent.

    sections: heading -> its text, with the parts of a `Ticket` in braces.
    """

    name: str
    title: str
    url: str
    sections: Mapping[str, str]

    @property
    def file(self) -> str:
        """The name of the file of a ticket where none is given."""
        return f"ticket-{self.name}.md"


_BUG = "{seen}\n\n{reproduction}\n\n{table}"
_EXPECTED = "**Expected.** {expected}"
_ENVIRONMENT = "```text\n{environment}\n```"
_SEARCHED = f"- [ ] {FILL_IN}: I searched the open and the closed issues for the same."

TRACKERS = {
    tracker.name: tracker
    for tracker in (
        Tracker(
            "vllm",
            "[Bug]: ",
            "https://github.com/vllm-project/vllm/issues/new?template=400-bug-report.yml",
            {
                "Your current environment": "<details>\n<summary>Environment, as "
                f"<code>ropeaudit list environment</code> shows it</summary>\n\n"
                f"{_ENVIRONMENT}\n\n</details>\n\n"
                f"{FILL_IN}: the output of `python collect_env.py`.",
                "🐛 Describe the bug": f"{_BUG}\n\n{_EXPECTED}",
                "Before submitting a new issue...": _SEARCHED,
            },
        ),
        Tracker(
            "transformers",
            "",
            "https://github.com/huggingface/transformers/issues/new?template=bug-report.yml",
            {
                "System Info": _ENVIRONMENT,
                "Who can help?": f"{FILL_IN}: whom the form names for this model, or nobody.",
                "Information": "- [ ] The official example scripts\n- [x] My own modified scripts",
                "Tasks": "- [ ] An officially supported task in the `examples` folder\n- [x] My own task or "
                "dataset (the snippet below)",
                "Reproduction": _BUG,
                "Expected behavior": "{expected}",
            },
        ),
        Tracker(
            "pytorch",
            "",
            "https://github.com/pytorch/pytorch/issues/new?template=bug-report.yml",
            {
                "🐛 Describe the bug": f"{_BUG}\n\n**Which result is right, and why.** {{expected}}",
                "Versions": f"{_ENVIRONMENT}\n\n"
                f"{FILL_IN}: the output of `python -m torch.utils.collect_env`.",
            },
        ),
        Tracker(
            "llama.cpp",
            "Misc. bug: ",
            "https://github.com/ggml-org/llama.cpp/issues/new?template=019-bug-misc.yml",
            {
                "Name and Version": f"{FILL_IN}: the output of `llama-cli --version`.",
                "Operating systems": "{system}",
                "Which llama.cpp modules do you know to be affected?": f"{FILL_IN}: libllama (core library), "
                "Python/Bash scripts, ...",
                "Command line": "```shell\n{command}\n```",
                "Problem description & steps to reproduce": f"{_BUG}\n\n{_EXPECTED}\n\n**Hardware.** "
                "{hardware}",
                "First Bad Commit": f"{FILL_IN}: if it is known.",
                "Relevant log output": _ENVIRONMENT,
            },
        ),
    )
}
