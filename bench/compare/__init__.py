"""The same work on this node and on other programs that run agents for callers: ``make compare``."""
