"""The phrase books: of the operations that the steps are made of, and of the frameworks' own layers."""
