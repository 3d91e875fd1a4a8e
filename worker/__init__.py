"""The side beside a Docker Engine: carries wishes out and writes facts back."""
