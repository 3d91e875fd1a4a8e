"""Saved LLM configurations, below the settings and below the caller's organization, where the web UI reads them."""

from typing import Annotated

from fastapi import APIRouter, Body

from api.errors.openapi import error_responses
from api.request.authentication import CurrentCaller, UserRoute
from api.request.context import ContextDep
from api.request.context_window import check_context_window
from api.schemas.v0.settings import in_clear
from api.schemas.v1.llm_profiles import (
    ActivateProfileResponse,
    NewProfileName,
    ProfileDetailResponse,
    ProfileListResponse,
    ProfileMutationResponse,
    ProfileName,
    RenameProfileRequest,
    SaveProfileRequest,
    list_profiles,
    serialize_profile,
)
from shared.users import llm_profile_store

router = APIRouter(tags=["llm profiles"], route_class=UserRoute)


@router.get("")
def get_profiles(context: ContextDep, caller: CurrentCaller) -> ProfileListResponse:
    """The caller's profiles, without keys."""
    with context.database.reading() as session:
        return list_profiles(llm_profile_store.load(session, context.vault, caller.id))


@router.get("/{name}")
def get_profile(context: ContextDep, caller: CurrentCaller, name: ProfileName) -> ProfileDetailResponse:
    """One profile, secrets masked."""
    with context.database.reading() as session:
        return serialize_profile(name, llm_profile_store.load(session, context.vault, caller.id).get(name))


@router.post("/{name}", status_code=201, responses=error_responses(409))
def save_profile(
    context: ContextDep,
    caller: CurrentCaller,
    name: NewProfileName,
    request: Annotated[SaveProfileRequest | None, Body()] = None,
) -> ProfileMutationResponse:
    """Save an LLM configuration under a name; it replaces an existing one. 409 if there are too many."""
    request = request or SaveProfileRequest()
    llm = None if request.llm is None else in_clear(request.llm)
    with context.database.transaction() as session:
        check_context_window(session, llm, "llm")
        llm_profile_store.save(
            session,
            context.vault,
            caller.id,
            name,
            llm,
            include_secrets=request.include_secrets,
            keep_key=request.preserve_existing_api_key,
        )
    return ProfileMutationResponse(name=name, message=f"Profile '{name}' saved")


@router.delete("/{name}")
def delete_profile(context: ContextDep, caller: CurrentCaller, name: ProfileName) -> ProfileMutationResponse:
    """Delete a profile, if it exists. If it was active, the first of the others becomes active."""
    with context.database.transaction() as session:
        llm_profile_store.delete(session, context.vault, caller.id, name)
    return ProfileMutationResponse(name=name, message=f"Profile '{name}' deleted")


@router.post("/{name}/activate")
def activate_profile(context: ContextDep, caller: CurrentCaller, name: ProfileName) -> ActivateProfileResponse:
    """Activate a profile: conversations started from now on use it."""
    with context.database.transaction() as session:
        llm = llm_profile_store.activate(session, context.vault, caller.id, name)
    return ActivateProfileResponse(name=name, message=f"Profile '{name}' activated", model=llm.get("model"))


@router.post("/{name}/rename", responses=error_responses(409))
def rename_profile(
    context: ContextDep, caller: CurrentCaller, name: ProfileName, request: RenameProfileRequest
) -> ProfileMutationResponse:
    """Rename a profile; 409 if the name is taken."""
    with context.database.transaction() as session:
        llm_profile_store.rename(session, context.vault, caller.id, name, request.new_name)
    return ProfileMutationResponse(name=request.new_name, message=f"Profile '{name}' renamed to '{request.new_name}'")
