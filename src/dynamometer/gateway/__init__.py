"""The canary proxy: engines, policies and decisions on live traffic."""
