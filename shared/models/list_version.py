"""Which state each user's lists are in."""

from sqlmodel import Field, SQLModel

# Stands in the place of an owner for what all lists depend on: the deadlines of the specs.
EVERYBODY = "*"


class ListVersion(SQLModel, table=True):
    """A text that is another one after each transaction that changes anything the owner's lists show.

    The database's triggers write it, at the end of the transaction, whoever changed the rows (decision 25). It is
    random, not counted up: a store that was restored from a backup comes to no version twice.
    """

    __tablename__ = "list_version"

    owner_id: str = Field(primary_key=True, max_length=32)
    version: str = Field(max_length=32)
