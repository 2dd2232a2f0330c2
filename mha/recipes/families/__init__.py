"""One module for each family of models, found by being here.

It has RECIPES, one object for each `mha.recipes.recipe.Recipe`, and PLACE, a number: the smaller, the earlier its
family is asked and listed.
"""
