"""Metrics in a scraper's format."""

from prometheus_client.parser import text_string_to_metric_families


def read_metrics(text: str) -> dict[tuple[str, ...], float]:
    """The value of each sample, by its name and the values of its labels in the order of the labels' names."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
