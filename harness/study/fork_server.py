"""What the launcher's fork server holds before it forks a run: torch, timm, and the state of the code as loaded.

The code of a run is what this server has loaded, so the commit and difference that environment.json names are taken
here, once, and not when a run starts: somebody may have edited a file meanwhile.
"""

import harness.experiment  # noqa: F401
from harness.environment import git_state

git_state()
