"""A plugin of pytest: the OpenAI Agents SDK's own tests, with Atoll in the place of its local client.

Their workspaces are folders of the host; here they are folders of that name in a sandbox.
"""

from agents.sandbox import sandboxes
from agents.sandbox.sandboxes import unix_local

from atoll.integrations.openai_sandbox import AtollSandboxClient


class InsteadOfUnixLocal(AtollSandboxClient):
    def __init__(self, *, inherit_host_environment=True, host_environment_allowlist=None, **rest):
        super().__init__(**rest)

    async def create(self, *, manifest=None, options=None, **rest):
        return await super().create(manifest=manifest, options=None, **rest)


def pytest_configure(config):
    unix_local.UnixLocalSandboxClient = sandboxes.UnixLocalSandboxClient = InsteadOfUnixLocal
