"""Drills: kill real processes, inject faults, and check the promise (docs/concepts/reliability.md) afterwards."""
