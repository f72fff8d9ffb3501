"""Guide: scikit-learn's parameter search, whose fits run on the pool."""

import skyward as sky

if __name__ == "__main__":
    from sklearn.datasets import make_classification
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    X, y = make_classification(n_samples=120, n_features=6, random_state=0)
    with sky.Compute(provider=sky.AWS(), nodes=1, plugins=[sky.plugins.sklearn()]):
        search = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2, n_jobs=-1).fit(X, y)
    assert search.best_score_ > 0.5 and set(search.best_params_) == {"C"}
