"""harness: data-scaling experiments for vision backbones (arXiv 2010.11929 §4.3-4.4 on your own images)."""

__version__ = "0.1.0"
