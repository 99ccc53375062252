"""The host side of a pod: who am I, is everybody here."""
