"""Seals: what makes a later change of an append-only row visible. No database here; `advisor.store` feeds it."""
