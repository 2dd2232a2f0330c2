"""The doors to this project that other programs know by name: the script `mha`, and the plugin of pytest.

They stand in a package of a name that nobody else has. The others are called what they are about, such as
`conformance`; a project that has a package of such a name itself is told so, and only if it uses ours.
"""
