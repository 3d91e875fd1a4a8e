"""Imports what further programs of the service import when they start, beside API and worker."""

import importlib
import runpy
import sys

MODULES = ("shared.cli.app", "shared.cli.local.database", "shared.cli.local.service", "shared.db.migrations")
# Run under other names, because each interpreter runs the real programs.
PROGRAMS = (
    "deploy.door",
    "deploy.egress_proxy",
    "deploy.engine_filter",
    "deploy.service.flower",
    "deploy.service.node_address",
    "deploy.service.restart",
)

for name in (*MODULES, "deploy.service.start"):
    importlib.import_module(name)
for program in PROGRAMS:
    runpy.run_module(program, run_name=f"imports_of_{program.rpartition('.')[2]}")
# This module has read this process's environment, but each interpreter has its own.
del sys.modules["worker.celery_app"]
