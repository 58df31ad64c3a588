from abaton.control import POLICIES, Rules, policy


def test_the_papers_policies_are_all_there():
    names = ["SyncFedAvg", "SyncDVW", "AsyncFedAvg", "FedAsync", "AsyncDVW(na)", "AsyncDVW(a)"]
    assert list(POLICIES) == names
    assert all(Rules(learners=10, rounds=5, **policy(name)) for name in names)
