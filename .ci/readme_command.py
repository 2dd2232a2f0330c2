"""Print the command that README.md shows under the marker `<!-- ci: NAME -->`."""

import re
import sys
from pathlib import Path

readme = (Path(__file__).parent.parent / "README.md").read_text()
found = re.search(rf"<!-- ci: {re.escape(sys.argv[1])} -->\n+```sh\n(.*?)\n```", readme, re.DOTALL)
if found is None:
    sys.exit(f"README.md has no command under <!-- ci: {sys.argv[1]} -->")
print(found.group(1))
