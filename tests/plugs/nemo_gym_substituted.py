"""A plugin of pytest: NeMo Gym's own tests of the facade, with Atoll in the place of enroot.

Images are this machine's own programs, as no registry is asked.
"""

import shutil

from nemo_gym.sandbox.providers.registry import register_provider

from atoll.integrations.nemo_gym import AtollProvider

WHICH = shutil.which


class InsteadOfEnroot(AtollProvider):
    def __init__(self, create=None):
        super().__init__(image="host")


def pytest_configure(config):
    register_provider("enroot", InsteadOfEnroot, override=True)
    shutil.which = lambda name, *rest, **options: (
        "/bin/true" if name == "enroot" else WHICH(name, *rest, **options)
    )
