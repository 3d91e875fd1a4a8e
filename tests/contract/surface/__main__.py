"""`python -m tests.contract.surface openapi.json`: make the table of facts from V1's OpenAPI document."""

import json
import sys
from pathlib import Path

from tests.contract.surface import facts

facts.write(json.loads(Path(sys.argv[1]).read_text()))
