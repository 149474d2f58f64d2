"""Nexmark: an auction site's persons, auctions and bids, and the rows that its queries give (docs/nexmark.md)."""
