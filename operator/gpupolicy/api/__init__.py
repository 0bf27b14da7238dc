"""The wire contract: names, conditions and the models of our kinds. Imports pydantic only."""
