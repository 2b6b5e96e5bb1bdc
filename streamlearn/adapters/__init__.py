"""Growing learners as estimators of other libraries, each imported by its own module alone.

`streamlearn.adapters.river` for river, `streamlearn.adapters.sklearn` for scikit-learn.
"""
