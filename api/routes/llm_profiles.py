"""Saved LLM configurations: below the settings, and below the caller's organization, where pages look for them."""

from typing import Annotated

from fastapi import APIRouter, Body

from api.auth import ForUsers, Me
from api.context import Here
from api.refusals import refusals
from api.schemas.llm_profiles import (
    ActivateProfileResponse,
    ProfileDetailResponse,
    ProfileListResponse,
    ProfileMutationResponse,
    ProfileName,
    RenameProfileRequest,
    SaveProfileRequest,
    list_profiles,
    show_profile,
)
from api.schemas.settings import in_clear
from shared.store import llm_profiles

router = APIRouter(tags=["llm profiles"], route_class=ForUsers)


@router.get("")
def get_profiles(here: Here, me: Me) -> ProfileListResponse:
    """The caller's profiles; no key is shown."""
    with here.database.reading() as session:
        return list_profiles(llm_profiles.load(session, here.vault, me.id))


@router.get("/{name}")
def get_profile(here: Here, me: Me, name: ProfileName) -> ProfileDetailResponse:
    """One profile, secrets masked."""
    with here.database.reading() as session:
        return show_profile(name, llm_profiles.load(session, here.vault, me.id).get(name))


@router.post("/{name}", status_code=201, responses=refusals(409))
def save_profile(
    here: Here, me: Me, name: ProfileName, request: Annotated[SaveProfileRequest | None, Body()] = None
) -> ProfileMutationResponse:
    """Keep an LLM's configuration under a name, in place of the one that had it; a 409 when there are too many."""
    request = request or SaveProfileRequest()
    with here.database.transaction() as session:
        llm_profiles.save(
            session,
            here.vault,
            me.id,
            name,
            None if request.llm is None else in_clear(request.llm),
            include_secrets=request.include_secrets,
            keep_key=request.preserve_existing_api_key,
        )
    return ProfileMutationResponse(name=name, message=f"Profile '{name}' saved")


@router.delete("/{name}")
def delete_profile(here: Here, me: Me, name: ProfileName) -> ProfileMutationResponse:
    """Forget a profile, if there is one; where it was active, the first of the others is from now on."""
    with here.database.transaction() as session:
        llm_profiles.delete(session, here.vault, me.id, name)
    return ProfileMutationResponse(name=name, message=f"Profile '{name}' deleted")


@router.post("/{name}/activate")
def activate_profile(here: Here, me: Me, name: ProfileName) -> ActivateProfileResponse:
    """Put a profile in force: conversations that are started from now on use it."""
    with here.database.transaction() as session:
        llm = llm_profiles.activate(session, here.vault, me.id, name)
    return ActivateProfileResponse(name=name, message=f"Profile '{name}' activated", model=llm.get("model"))


@router.post("/{name}/rename", responses=refusals(409))
def rename_profile(here: Here, me: Me, name: ProfileName, request: RenameProfileRequest) -> ProfileMutationResponse:
    """Call a profile something else; a 409 if the name is taken."""
    with here.database.transaction() as session:
        llm_profiles.rename(session, here.vault, me.id, name, request.new_name)
    return ProfileMutationResponse(name=request.new_name, message=f"Profile '{name}' renamed to '{request.new_name}'")
