"""Policies, critics and the heads of critics."""
