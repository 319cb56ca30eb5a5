"""rlms with its environment in a sandbox: a completion with sub-calls, and a scripted model.

Its own tests of environments are run beside this, with `rlms_substituted`.
"""

from __future__ import annotations

import subprocess
import sys

import rlm.core.rlm as core
from pages import run_example
from rlm import RLM
from rlm.clients.base_lm import BaseLM
from rlm.core.types import ModelUsageSummary, UsageSummary

from atoll import Isolation
from atoll.integrations.rlms import AtollREPL, register


class Scripted(BaseLM):
    def __init__(self) -> None:
        super().__init__(model_name="scripted")
        self._cells = iter(
            [
                "```repl\nfound = llm_query('word? ' + context[:5])\nprint(found)\n```",
                "```repl\nanswer['content'] = found.upper()\nanswer['ready'] = True\n```",
            ]
        )

    def completion(self, prompt, model=None):
        if isinstance(prompt, str) and prompt.startswith("word?"):
            return f"seen {prompt[6:]}"
        return next(self._cells)

    async def acompletion(self, prompt, model=None):
        return self.completion(prompt)

    def get_usage_summary(self):
        return UsageSummary(model_usage_summaries={"scripted": self.get_last_usage()})

    def get_last_usage(self):
        return ModelUsageSummary(total_calls=1, total_input_tokens=1, total_output_tokens=1)


def test_a_completion_runs_in_the_sandbox(monkeypatch):
    model = Scripted()
    monkeypatch.setattr(core, "get_client", lambda *_: model)
    register()
    rlm = RLM(backend="openai", backend_kwargs={"model_name": "scripted"}, environment="atoll")
    assert rlm.completion("hello world").response == "SEEN HELLO"


def test_every_answer_of_a_persistent_environment_is_told():
    with AtollREPL() as repl:
        for code in (
            "answer['content'] = 'a'\nanswer['ready'] = True",
            "answer['content'] = 'a'\nanswer['ready'] = True",
            "answer = {'content': 'a', 'ready': True}",
        ):
            assert repl.execute_code(code).final_answer == "a"
            assert repl.execute_code("pass").final_answer is None


def test_a_large_text_is_shared_and_the_host_is_out_of_reach():
    text = "x" * 5_000_000
    with AtollREPL(context_payload=text) as repl:
        assert repl.isolation >= Isolation.JAILED
        assert (
            repl.execute_code("print(len(context), context is context_0)").stdout
            == "5000000 True\n"
        )
        repl.add_context(["y"] * 1_000_000)
        assert repl.execute_code("print(len(context_1))").stdout == "1000000\n"
        assert "large" in repl.execute_code("pass").locals["context_1"]
        assert "Error" in repl.execute_code("open('/etc/shadow')").stderr


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_example("rlms")


def test_a_process_ends_that_leaves_its_sandbox_open():
    code = "from atoll.integrations.rlms import AtollREPL\nkept = AtollREPL()\nkept.me = kept"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
