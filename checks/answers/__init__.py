"""The learner's answers: in notebooks, carried to later labs, remembered, exported."""
