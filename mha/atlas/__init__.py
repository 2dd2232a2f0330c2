"""The atlas: what the attention of other engines does, asked in their own processes, and written down."""
