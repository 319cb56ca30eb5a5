"""A plugin of pytest: rlms' own tests find AtollREPL where they import LocalREPL."""

import rlm.environments
import rlm.environments.local_repl

from atoll.integrations.rlms import AtollREPL

rlm.environments.local_repl.LocalREPL = rlm.environments.LocalREPL = AtollREPL
