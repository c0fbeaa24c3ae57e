"""The project's own rules: who imports what, and pages that say what the tests say."""
