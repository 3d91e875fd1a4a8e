"""`python -m tests.contract.surface openapi.json`: write the table of V1's interface from its OpenAPI document."""

import json
import sys
from pathlib import Path

from tests.contract.surface import table

table.write(json.loads(Path(sys.argv[1]).read_text()))
