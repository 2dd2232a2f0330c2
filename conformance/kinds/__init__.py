"""Kinds of mistakes, each with its parameters: they are made where a subject differs, and tried like those on file."""
